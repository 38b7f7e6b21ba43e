"""The catalogue of methods: one method, one file. Read by the parent; applied by policy, in the child."""
