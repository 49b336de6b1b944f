"""How drafts that come with Tandem were made."""
