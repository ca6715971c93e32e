"""Figures as data: one set of columns for CSV, Parquet and pandas; no sentences for people."""
