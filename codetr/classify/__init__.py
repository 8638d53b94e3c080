"""Classification: datasets in class folders, preprocessing, top-1 and top-5, training."""
