"""Price of a plan: stages from layer costs, their pipeline, step time and memory."""
