"""Services for all other rooms: input checks, errors, files, compiled programs, memory, processes, progress."""
