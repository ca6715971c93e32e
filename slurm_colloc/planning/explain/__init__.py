"""Why a plan looks as it does, for people; nothing here chooses."""
