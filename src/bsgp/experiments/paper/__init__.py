"""The paper's figures and tables, one file each. Airline and higgs share theirs."""
