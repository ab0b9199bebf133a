"""What every benchmark needs: hosts of its own (``hosts``), what all that ran there has used (``tree``), results."""
