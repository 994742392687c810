"""Certificates that no design of a study is better than its best one, and an independent audit of them."""
