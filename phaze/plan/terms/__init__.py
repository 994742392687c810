"""Terms of a plan's price: functions of numbers or of arrays with one element per layout.

A price is the call with numbers. A lower bound is the call with arrays, in which every undecided input has
its most favourable value: terms are monotone in their inputs, so the result is at most the price.
"""
