"""The pages of the report; each module makes the blocks of one kind of page."""
