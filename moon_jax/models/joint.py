"""Several models that a client trains together, as one tree of variables.

A method whose clients train a model of their own beside the one they send
returns `join(sent=w, own=v)` from `Algorithm.start`, and reads a model with
`part(trained, 'own')`.
"""

from typing import Any

from moon_jax.models.base import Variables


def join(**models: Variables) -> dict[str, Any]:
  """Returns {'params': {name: ...}, ...} for models by name.

  Args:
    **models: variables of each model; all must have the same collections.

  Examples:
    >>> trained = join(sent=view.variables, own=view.client)
    >>> part(trained, 'own')  # view.client
  """
  collections = next(iter(models.values()))
  return {collection: {name: model[collection]
                       for name, model in models.items()}
          for collection in collections}


def part(trained: dict[str, Any], name: str) -> Variables:
  """Returns the variables of the model `name` of `join`."""
  return {collection: models[name] for collection, models in trained.items()}
