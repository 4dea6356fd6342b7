"""Effects: everything here touches the world and returns raw series."""
