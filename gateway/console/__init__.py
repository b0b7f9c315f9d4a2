"""WHAT PEOPLE LOOK AT: admin routes and terminal views."""
