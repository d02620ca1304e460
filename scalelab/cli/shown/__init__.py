"""What several commands print: tables and sentences made from facts."""
