"""Data sets, partitions over clients, cohorts and augmentation."""
