"""The configuration of a run; see `moon_jax.config.flags`."""

from moon_jax.config.flags import Config as Config
from moon_jax.config.flags import DATASETS as DATASETS
from moon_jax.config.flags import FACTS as FACTS
from moon_jax.config.flags import flags_with as flags_with
from moon_jax.config.flags import HUGGINGFACE as HUGGINGFACE
from moon_jax.config.flags import LOGGERS as LOGGERS
from moon_jax.config.flags import PARTS as PARTS
from moon_jax.config.flags import TOPICS as TOPICS
from moon_jax.config.kinds import KINDS as KINDS
from moon_jax.config.parts import File as File
from moon_jax.config.parts import FromRun as FromRun
from moon_jax.config.parts import OrFromRun as OrFromRun
from moon_jax.config.parts import Part as Part
from moon_jax.config.spelling import is_user_code as is_user_code
from moon_jax.config.suggest import arguments as _arguments

_arguments(Config)
