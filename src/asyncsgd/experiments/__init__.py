"""The paper reproduced: one file per claim, each of which measures, judges and draws."""
