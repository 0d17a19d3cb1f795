"""From measured durations to advice: would going asynchronous help, by how much, with which concurrency and step?"""
