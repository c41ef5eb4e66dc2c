"""What must hold, shown with real programs: each test states one promise to a user."""
