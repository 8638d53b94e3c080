"""Detection in pictures: preprocessing, three backends, non-maximum suppression. Imports no Torch."""
