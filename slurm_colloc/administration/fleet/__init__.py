"""What packs of all users report to the site: collected with distrust, kept by day, summed up."""
