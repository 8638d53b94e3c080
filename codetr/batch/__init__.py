"""Detection in any number of pictures, by Ray Data. Importing it needs neither Ray nor Torch."""
