"""Errors of flags have one line, name what is meant and exit with status 2."""

import pytest

import moon_jax as mj
from moon_jax.cli import command_line


@pytest.fixture
def error(quick, tmp_path):
  def error(module, *words):
    done = quick.run(*words, cwd=tmp_path, module=module)
    assert (done.status, done.out) == (2, '')
    assert done.err.count('\n') == 1
    return done.err

  return error


@pytest.mark.parametrize('word, message', [
    ('--lr=0.1', '--lr; did you mean --learning_rate=0.1? --help lists'),
    ('--no-shuffle', '--no-shuffle; did you mean --noshuffle?'),
    ('--config=x', 'did you mean --flagfile=x?'),
    ('--gpu=0', 'there is no flag --gpu; JAX uses all GPUs'),
    ('--clients_per_round=5', 'give --participation, the fraction'),
    ('--xyz', 'there is no flag --xyz. --help lists'),
    ('--hepl', 'did you mean --help?'),
    ('--optimizer=SGD', 'train: --optimizer=SGD: must be one of sgd, adam, '
     'amsgrad; did you mean --optimizer=sgd?'),
    ('--num_rounds=ten', 'train: --num_rounds=ten: must be an integer.'),
    ('--mu=few', '--mu=few: must be a number.'),
    ('--augment=maybe', '--augment=maybe: must be true or false.'),
    ('--flagfile=x', 'train: Unable to open flagfile: [Errno 2]'),
    ('false', "'false'; write --FLAG or --noFLAG without a value"),
])
def test_errors_of_flags(word, message, error):
  assert message in error('moon_jax.train', word)


@pytest.mark.parametrize('words, message', [
    (('moon_jax.train', '--dataset=cifar-10'), 'mean --dataset=cifar10'),
    (('moon_jax.plan', '--model=resnet-50'), 'did you mean --model=resnet50'),
    (('moon_jax.plan', '--traget=h100'), 'did you mean --target=h100'),
    (('moon_jax.plan', '--target=H100'), 'did you mean --target=h100'),
    (('moon_jax.sweep', '--grid', 'algorithm=FedAvg,moon'),
     '--grid algorithm=FedAvg: --algorithm must be one of'),
    (('moon_jax.sweep', '--grid', 'lr=0.1,1'), "nearest is 'learning_rate'"),
    (('moon_jax.sweep', '--grid', 'gpus=1,2'), 'JAX uses all GPUs'),
    (('moon_jax.report', 'x', '--bugdet=smoke'), 'did you mean --budget=smoke'),
])
def test_errors_of_commands(words, message, error):
  assert message in error(*words)


def test_errors_in_flag_files(tmp_path):
  path = tmp_path / 'x.flags'
  path.write_text('--rounds=3\n')
  with pytest.raises(mj.UserError, match=r'did you mean --num_rounds=3\?'):
    command_line.settings_of_files([f'--flagfile={path}'], 'where')


def test_errors_of_the_library():
  with pytest.raises(mj.UserError, match='did you mean --dataset=cifar10'):
    mj.load_dataset('cifar-10')
  with pytest.raises(mj.UserError, match='did you mean --optimizer=sgd'):
    mj.run(mj.Config(dataset='digits', optimizer='SGD'))
  with pytest.raises(mj.UserError, match='did you mean --metrics=top5'):
    mj.run(mj.Config(dataset='digits', metrics='top-5'))
