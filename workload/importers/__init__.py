"""Result files of other load generators, read into our run directory."""
