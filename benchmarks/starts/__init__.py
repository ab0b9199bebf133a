"""Measures starts of all contenders (`make bench-full`): ``run`` takes samples, and the other files read them."""
