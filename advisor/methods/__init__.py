"""The catalogue of methods: one method, one file."""
