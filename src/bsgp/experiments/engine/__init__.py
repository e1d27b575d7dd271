"""Campaigns of many runs, in processes of this machine or on a Dask cluster."""
