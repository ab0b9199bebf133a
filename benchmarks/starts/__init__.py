"""Starts of all contenders (`make bench-full`): ``run`` takes samples; ``figures``, ``report``, ``goals`` read them."""
