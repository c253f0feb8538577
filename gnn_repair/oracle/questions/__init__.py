"""Questions beyond the largest margin; each is exact without a head, and by verdicts behind one."""
