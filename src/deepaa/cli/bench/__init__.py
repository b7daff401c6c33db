"""`deepaa bench ops`: how fast images are augmented, beside other libraries."""
