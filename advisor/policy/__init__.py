"""A choice of methods and batch: the record, its file, its application, its wrapper. For trials and for users."""
