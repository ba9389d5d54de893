"""Data sets, their split over clients, and the cohorts of each round."""
