"""Runs the app with 3 learning rates and 3 seeds, and plots the results."""

import json
import subprocess

import matplotlib.pyplot as plt
import numpy as np

RATES = 0.02, 0.05, 0.1

for rate in RATES:
  for seed in range(3):
    subprocess.run([
        'flwr', 'run', 'sweep', '--stream', '--federation-config',
        'num-supernodes=10', '--run-config',
        f'learning-rate={rate} seed={seed}'], check=True)
with open('results.jsonl', encoding='utf-8') as file:
  results = [json.loads(line) for line in file]
for rate in RATES:
  runs = [accuracies for found, accuracies in results if found == rate]
  plt.errorbar(range(len(runs[0])), np.mean(runs, 0), np.std(runs, 0, ddof=1),
               label=f'learning rate {rate}')
  print(rate, np.mean(runs, 0)[-1], np.std(runs, 0, ddof=1)[-1])
plt.xlabel('round')
plt.ylabel('test accuracy')
plt.legend()
plt.savefig('sweep.png')
