"""Finding MSDA: samplers, regions, and the roles of a region's tensors."""
