"""Before and after training: what a policy would gain, which numbers to set, what hardware takes."""
