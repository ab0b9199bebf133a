"""What only a client does: route ``torch.compile`` to us, prepare graphs, load artifacts, retrace."""
