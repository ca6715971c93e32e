"""Why a plan looks as it does, and why jobs are apart, for people; nothing here chooses."""
