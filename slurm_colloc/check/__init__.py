"""`csub check`: what a script would collide in on a shared GPU; reads, and runs nothing."""
