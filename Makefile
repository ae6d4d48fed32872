# Shortcuts; what they do is in the scripts.

.PHONY: ci clients-latest

# Everything that must pass, from a clean checkout.
ci:
	.ci/run

# The tests of other people's clients, with their newest releases.
clients-latest:
	scripts/clients-latest $(ARGUMENTS)
