"""What is known of each server: its program, flags, ports, how it says that a rank is bound."""
