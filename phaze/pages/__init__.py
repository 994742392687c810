"""Engine of all pages: sections of tables, charts and sentences, from texts in YAML, as HTML and Markdown."""
