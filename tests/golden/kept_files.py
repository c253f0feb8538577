def of_files(): return {}
