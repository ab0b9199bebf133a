"""What lies on the disk: artifacts, packages, failure records, and whom to trust with having written them. No torch.

``artifacts.Store`` and ``packages.PackageStore`` are the doors; ``*_format`` say what is in the files.
"""
