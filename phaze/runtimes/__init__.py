"""Software that trains models: its rules for layouts with their reasons, and all layouts on some devices."""
