"""fluke (https://github.com/makgyver/fluke), its loop, server and clients.

Its evaluation, of seven metrics, is switched off.
"""

import time
import types

import side
import torch

side.allow_torchvision()

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms import CentralizedFL  # noqa: E402
from fluke.algorithms.moon import MOON  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.nets import EncoderHeadNet  # noqa: E402
from fluke.utils import FederationObserver  # noqa: E402


class Rounds(FederationObserver):
  """Measures rounds."""

  def __init__(self):
    self.seconds = []

  def start_round(self, round, global_model):
    self._start = time.perf_counter()

  def end_round(self, round):
    self.seconds.append(time.perf_counter() - self._start)


def train(task, data):
  loader = lambda x, y, size: FastDataLoader(
      x, y, num_labels=10, batch_size=size, shuffle=True)
  splitter = types.SimpleNamespace(assign=lambda num_clients, size: (
      ([loader(x, y, size) for x, y in data.train], [None] * num_clients),
      None))
  FlukeENV().set_eval_cfg(
      pre_fit=False, post_fit=False, locals=False, server=False)
  network = side.Network()
  federation = {'fedavg': CentralizedFL, 'moon': MOON}[task['algorithm']](
      len(data.train), splitter, DDict(
          client=DDict(
              batch_size=task['batch_size'], local_epochs=1,
              loss=torch.nn.CrossEntropyLoss, scheduler=DDict(
                  name='StepLR', step_size=1, gamma=1),
              optimizer=DDict(
                  name='SGD', lr=task['learning_rate'],
                  momentum=task['momentum'],
                  weight_decay=task['weight_decay']),
              **({'mu': task['mu'], 'tau': task['temperature']}
                 if task['algorithm'] == 'moon' else {})),
          server=DDict(weighted=True),
          model=EncoderHeadNet(network.base, network.head)))
  rounds = Rounds()
  federation.set_callbacks(rounds)
  federation.run(task['num_rounds'], 1., finalize=False)
  return {'round_seconds': rounds.seconds}, federation.server.model


if __name__ == '__main__':
  side.main(train)
