"""`csub doctor`: what works here, what is lost where something does not, and what to do."""
