"""Programs for a clone of the repository; the wheel has none of them."""
