"""The HTML page of `csub report --html`: its values, its template and scripts; it only reads."""
