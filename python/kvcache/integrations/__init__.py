"""Faces for engines that exist: each has the methods its engine already calls."""
