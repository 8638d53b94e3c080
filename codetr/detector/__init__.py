"""Detection in pictures: preprocessing, three backends, postprocessing. Importing it imports no Torch."""
