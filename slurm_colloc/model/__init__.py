"""The words of the design as frozen values; standard library only, no effects."""
