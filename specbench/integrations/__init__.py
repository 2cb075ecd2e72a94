"""specbench's methods inside other people's engines."""
