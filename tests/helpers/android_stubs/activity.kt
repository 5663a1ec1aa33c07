package android.app

open class Activity : android.content.Context() {
    protected open fun onCreate(savedInstanceState: android.os.Bundle?) {}

    fun setContentView(view: android.widget.TextView?) {}

    fun runOnUiThread(action: Runnable) {}
}
